"""The engines' side: what their metrics pages say.

Reading order: `exposition` (samples out of a page), `dialect` (an engine's names, a page as a `Sample`), `scraper` (one
endpoint, again and again).
"""

"""The engines' side: what their metrics pages say.

Reading order: `exposition` (samples out of a page), `dialects` (an engine's names, a page as a `Sample`), `access` (how
engines are reached), `page` (one page over HTTP), `rhythm` (when), `scraper` (one endpoint, again and again).
"""

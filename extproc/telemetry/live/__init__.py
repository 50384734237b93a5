"""The live page at `/` of the HTTP port: its files, and the stream of figures that it shows.

source   what the page is told, and by whom
feed     the stream: one snapshot a second, encoded once, to all who read
assets   the page's files, as they are served
"""

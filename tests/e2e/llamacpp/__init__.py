"""A second real engine for the end-to-end tests: llama.cpp's own HTTP server on a model of half a megabyte."""

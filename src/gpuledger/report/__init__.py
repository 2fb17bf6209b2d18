"""Render results as text, JSON, HTML, plots and traces. Renderers compute nothing."""

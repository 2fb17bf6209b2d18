"""Results to text and HTML. Renderers compute nothing."""

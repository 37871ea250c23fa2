"""`inv report`: a run as one self-contained page (Bokeh and Jinja, the extra `[watch]`). Laptop's side."""

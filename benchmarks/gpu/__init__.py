"""A real SGLang 0.5.17 on one Hopper GPU without network: what is carried there, and how it is started."""

"""A host as something that runs a verb: over SSH, or on the laptop itself, behind one class (`backend.Backend`)."""

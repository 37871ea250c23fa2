"""Runs verbs on a host, over SSH or on the laptop itself, behind one class (`backend.Backend`)."""

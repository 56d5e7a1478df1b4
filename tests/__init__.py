"""Tests. The modules beside this file (java, process, node, apache) are helpers for several kinds of test."""

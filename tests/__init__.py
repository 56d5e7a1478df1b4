"""Tests; the modules beside this file (java, node) are helpers that several kinds of test share."""

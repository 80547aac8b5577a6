"""One module a part of the stack, one function a claim."""

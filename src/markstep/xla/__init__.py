"""The xla device and the API of torch_xla on top of it. `markstep.compat` gives it torch_xla's import names."""

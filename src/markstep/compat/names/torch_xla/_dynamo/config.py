"""`torch_xla._dynamo.config`: torch.compile."""

skip_input_data_check = False  # has no effect

__all__ = ["skip_input_data_check"]

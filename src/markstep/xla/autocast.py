"""Which operators `torch.autocast("xla")` runs in which precision: torch_xla's lists (PyTorch has none for this device)."""

LOWER_PRECISION = [
    "conv1d", "conv1d.padding", "conv2d", "conv2d.padding", "conv3d", "conv3d.padding", "conv_tbc", "conv_transpose1d",
    "conv_transpose2d.input", "conv_transpose3d.input", "bmm", "mm", "baddbmm", "addmm", "addbmm", "linear", "matmul", "prelu",
    "relu", "max_pool2d", "einsum", "scaled_dot_product_attention",
]  # fmt: skip
FP32 = [
    "batch_norm", "log_softmax.int", "log_softmax.Dimname", "softmax.int", "softmax.Dimname", "binary_cross_entropy",
    "binary_cross_entropy_with_logits", "pow.Tensor_Scalar", "prod", "prod.dim_int", "prod.dim_Dimname", "cdist", "trace",
    "pad", "reflection_pad1d", "reflection_pad2d", "reflection_pad3d", "replication_pad1d", "replication_pad2d",
    "replication_pad3d", "mse_loss", "nll_loss", "nll_loss2d", "nll_loss_nd", "cross_entropy_loss", "l1_loss", "smooth_l1_loss",
    "huber_loss", "kl_div", "soft_margin_loss", "multilabel_margin_loss", "multi_margin_loss", "triplet_margin_loss",
    "margin_ranking_loss", "hinge_embedding_loss", "cosine_embedding_loss", "poisson_nll_loss", "ctc_loss.IntList",
    "ctc_loss.Tensor", "cholesky", "inverse", "qr", "svd", "linalg_cholesky", "linalg_inv", "linalg_svd", "linalg_qr",
    "linalg_eigh", "linalg_pinv", "nanquantile", "quantile", "logdet", "cholesky_inverse", "cholesky_solve", "lu_solve",
    "geqrf", "orgqr", "triangular_solve", "multilabel_margin_loss_forward",
]  # fmt: skip
WIDEST = ["stack", "cat", "index_copy"]

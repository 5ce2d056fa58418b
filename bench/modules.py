"""Models of the suite that transformers does not have. Like its models they return (loss, outputs)."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import cross_entropy


class LSTMLanguageModel(nn.Module):
    """A word-level language model (Zaremba et al. 2014, "medium": 2 layers of 650, dropout 0.5)."""

    def __init__(self, vocab_size: int, hidden: int, layers: int = 2, dropout: float = 0.5) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, hidden)
        self.lstm = nn.LSTM(hidden, hidden, layers, dropout=dropout, batch_first=True)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(hidden, vocab_size)

    def forward(self, inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        out, _ = self.lstm(self.dropout(self.embedding(inputs)))
        scores = self.head(self.dropout(out))
        return cross_entropy(scores.flatten(0, 1), labels.flatten()), scores


class MLP(nn.Module):
    """Two hidden layers on 8x8 images: a step of pure overhead."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 10))

    def forward(self, inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        scores = self.layers(inputs)
        return cross_entropy(scores, labels), scores

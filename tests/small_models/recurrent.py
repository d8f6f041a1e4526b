"""How recurrent models are made small, and their choices that no variant has."""

CHANGES = {
    "source_vocabulary_size": 17,
    "target_vocabulary_size": 17,
    "embedding_dim": 7,
    "hidden_dim": 12,
    "dropout": 0.0,
}
DEEP = {"encoder_depth": 2, "decoder_depth": 3}
FURTHER = {
    "rnn_deep": ("rnn", {**DEEP, "tie": "all"}),
    "rnn_general_deep": ("rnn_general", {**DEEP, "tie": "none", "target_vocabulary_size": 13}),
    "rnn_scaled_dot_unfed": ("rnn_scaled_dot", {"input_feeding": False, "decoder_depth": 2}),
    "rnn_additive_unfed": ("rnn_additive", {"input_feeding": False}),
    "gru_dot_deep": ("gru_additive", {**DEEP, "attention": "dot"}),
    "gru_general_unfed": ("gru_additive", {"attention": "general", "input_feeding": False}),
}

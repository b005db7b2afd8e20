"""The oracle and the unpacked witness.

The oracle computes log-probs, the loss (of a preference objective or of SFT) and LoRA gradients in float64 from the
definition of the architecture, one unpadded sequence at a time (:func:`reference_impl.step.oracle_step`); likewise
rewards, loss and gradients of a reward model (:func:`reference_impl.reward_model.oracle_reward_step`) and the auxiliary
loss of routers (:func:`reference_impl.router_loss.oracle_router_loss`). The witness is the ordinary unpacked
computation on a model object in its own dtype (:func:`reference_impl.pairwise.per_token_logps`).
"""

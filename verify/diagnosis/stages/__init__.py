"""From evidence to stages: what differs first in the order of computation is where the fault is.

- log-probs of the policy: what was fed, seen and where (layout, mask, positions), then hidden states (activations),
  then which value was read (predictors, supervision), then how it was computed (token_logps): ``log_probs``
- log-probs of the frozen policy only: reference
- rewards: supervision, reduction or objective, by the tokens' weights in the gradient, and by value: ``sums``
- loss: objective or accumulation, by the groups' weights in the gradient: ``losses``
- loss of supervised fine-tuning: by value and by the tokens' weights in the gradient: ``sft_losses``
- gradients only: objective where weights of responses explain them, else where the backward pass differs: ``backward``
- exact checks that failed, with or without any of these: ``exact_checks``
"""

# vllm-openai-nightly-1acd67a: vllm/vllm-openai:nightly-1acd67a795ebccdf9b9db7697ae9082058301657, as it is published. Rendered by builder.
FROM base-published AS runtime

# vllm-openai-0.20.0: vllm/vllm-openai:v0.20.0, as it is published. Rendered by builder.
FROM base-published AS runtime

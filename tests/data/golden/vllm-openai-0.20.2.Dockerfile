# vllm-openai-0.20.2: vllm/vllm-openai:v0.20.2, as it is published. Rendered by builder.
FROM base-published AS runtime

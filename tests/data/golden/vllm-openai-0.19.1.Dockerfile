# vllm-openai-0.19.1: vllm/vllm-openai:v0.19.1-cu130, as it is published. Rendered by builder.
FROM base-published AS runtime

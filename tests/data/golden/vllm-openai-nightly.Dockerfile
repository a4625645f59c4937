# vllm-openai-nightly: vllm/vllm-openai:nightly, as it is published. Rendered by builder.
FROM base-published AS runtime

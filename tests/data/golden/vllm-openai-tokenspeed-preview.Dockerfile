# vllm-openai-tokenspeed-preview: vllm/vllm-openai:tokenspeed-preview, as it is published. Rendered by builder.
FROM base-published AS runtime

"""Images in registries: pushing, tags and their history, attachments, signatures, deletion.

Whatever asks a registry raises ``RegistryError`` where it refuses or its response is damaged,
``FetchError`` where it does not answer; whatever uses cosign raises ``WorldError`` where it fails.
"""

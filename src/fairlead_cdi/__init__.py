"""The Container Device Interface as a library: read, validate, resolve and write specs, standard library only.

Use the modules, not this package: `spec` (the nouns), `names`, `version`, `parse`, `validate`, `emit`, `annotation`,
`directory` (spec folders → registry), `lint`, `difference`, `host` (device nodes of this machine). `yamlfile` adds
PyYAML and `cache` adds inotify; nothing here imports those two, so a container hook never pays for them. Injection
into an OCI runtime spec is a decision and lives in `fairlead_cdi.inject`.
"""

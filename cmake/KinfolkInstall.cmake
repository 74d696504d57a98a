install(TARGETS kinfolk EXPORT kinfolk_targets)
install(TARGETS kinfolk_cli)

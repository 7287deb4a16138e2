# The assumptions of docs/python/functions.md: a package of another tenant on the platform that the page has started.

another_tenant() {
    local page=$PPID state
    state=$(tr '\0' '\n' <"/proc/$(pgrep --parent "$page" --newest sublet)/cmdline" | sed -n '/^--state$/{n;p}')
    mkdir -p other/words
    printf 'name = "words"\nkind = "python"\nlibrary = "words.py"\n\n[[function]]\nname = "count"\n' >other/words/sublet.toml
    cat >other/words/words.py <<-'END'
		import re

		def count(text):
		    return len(text.split())

		def pattern(text):
		    return re.compile(text)
	END
    SUBLET_MANAGER=unix:$state/manager.sock sublet token create --tenant alice >other/token
    SUBLET_MANAGER=unix:$state/manager.sock SUBLET_TOKEN_FILE=other/token sublet deploy ./other/words
}

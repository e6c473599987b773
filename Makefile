# `make demo` and `make test` do all the set-up that they need; `make help` lists the rest.

SHELL := bash
.DEFAULT_GOAL := help
.PHONY: help demo test soak fuzz bench doc man install uninstall clean

TARGET := $(or $(CARGO_TARGET_DIR),target)
# Where `make install` puts things; DESTDIR goes before all of it, for packagers.
PREFIX ?= /usr/local
prefix ?= $(PREFIX)
bindir ?= $(prefix)/bin
datadir ?= $(prefix)/share
mandir ?= $(datadir)/man
docdir ?= $(datadir)/doc/dioxide
unitdir ?= $(prefix)/lib/systemd/system
# mount(8) looks for its helpers there and nowhere else. Who installs in a folder of his own mounts without them.
sbindir ?= $(if $(filter /usr /usr/local,$(prefix)),/sbin,$(prefix)/sbin)
# The command that is installed; one that is named is not built.
binary ?=
built := $(or $(binary),$(TARGET)/release/dioxide)
# Debian keeps mke2fs and its kin where users do not look.
export PATH := $(PATH):/usr/sbin:/sbin

help: ## This list
	@sed -nE 's/^([a-z]+):.*## (.*)/  make \1\t\2/p' Makefile | expand -t 18

demo: ## Set up, build, run the experiments for about a minute, check the image
	@scripts/demo

test: ## Set up; format, clippy, rustdoc, licences, model tests, all tests
	@scripts/test

soak: ## The long explorations: hours rather than minutes
	@scripts/setup test
	@scripts/setup fuzz
	DIOXIDE_SOAK=1 cargo test --workspace --release -- --nocapture
	cargo test --workspace --release --test sim -- --ignored --nocapture --test-threads 1
	DIOXIDE=$(TARGET)/release/dioxide tests/foreign/run || [ $$? = 77 ]
	FUZZ_SECONDS=$${FUZZ_SECONDS:-600} scripts/fuzz

fuzz: ## Every fuzz target for FUZZ_SECONDS (60) each
	@scripts/setup fuzz
	@scripts/fuzz

bench: ## The experiments at full length; writes target/bench.json and target/bench.html
	@scripts/setup demo
	cargo build --release -p dioxide-cli
	$(TARGET)/release/dioxide bench --json $(TARGET)/bench.json --html $(TARGET)/bench.html

doc: ## The API documentation, in target/doc
	RUSTDOCFLAGS=-Dwarnings cargo doc --workspace --no-deps

man: ## Man pages and shell completions, in target/man and target/completions
	cargo run -q --release -p dioxide-cli -- gen man $(TARGET)/man
	cargo run -q --release -p dioxide-cli -- gen completions $(TARGET)/completions

install: ## The command, helpers of mount(8), man pages, completions, units, under PREFIX (/usr/local)
	$(if $(binary),,cargo build --locked --release -p dioxide-cli)
	rm -rf $(TARGET)/man $(TARGET)/completions
	$(built) gen man $(TARGET)/man
	$(built) gen completions $(TARGET)/completions
	install -D -m 755 $(built) $(DESTDIR)$(bindir)/dioxide
	install -d $(DESTDIR)$(sbindir)
	ln -sf $(bindir)/dioxide $(DESTDIR)$(sbindir)/mount.fuse.dioxide
	ln -sf $(bindir)/dioxide $(DESTDIR)$(sbindir)/umount.fuse.dioxide
	install -d $(DESTDIR)$(mandir)/man1
	install -m 644 $(TARGET)/man/*.1 $(DESTDIR)$(mandir)/man1
	install -D -m 644 $(TARGET)/completions/dioxide.bash $(DESTDIR)$(datadir)/bash-completion/completions/dioxide
	install -D -m 644 $(TARGET)/completions/_dioxide $(DESTDIR)$(datadir)/zsh/site-functions/_dioxide
	install -D -m 644 $(TARGET)/completions/dioxide.fish $(DESTDIR)$(datadir)/fish/vendor_completions.d/dioxide.fish
	install -d $(DESTDIR)$(unitdir) $(DESTDIR)$(docdir)/examples
	sed 's|/usr/local/bin|$(bindir)|' contrib/systemd/dioxide@.service >$(DESTDIR)$(unitdir)/dioxide@.service
	install -m 644 contrib/systemd/srv-photos.mount $(DESTDIR)$(docdir)/examples
	install -m 644 README.md CHANGELOG.md LICENSE-MIT LICENSE-APACHE $(DESTDIR)$(docdir)
	install -d $(DESTDIR)$(docdir)/docs
	install -m 644 docs/*.md $(DESTDIR)$(docdir)/docs

uninstall: ## Remove what install has put there: say the same DESTDIR and PREFIX
	rm -f $(DESTDIR)$(bindir)/dioxide
	rm -f $(DESTDIR)$(sbindir)/mount.fuse.dioxide $(DESTDIR)$(sbindir)/umount.fuse.dioxide
	rm -f $(DESTDIR)$(mandir)/man1/dioxide.1 $(DESTDIR)$(mandir)/man1/dioxide-*.1
	rm -f $(DESTDIR)$(datadir)/bash-completion/completions/dioxide
	rm -f $(DESTDIR)$(datadir)/zsh/site-functions/_dioxide
	rm -f $(DESTDIR)$(datadir)/fish/vendor_completions.d/dioxide.fish
	rm -f $(DESTDIR)$(unitdir)/dioxide@.service
	rm -rf $(DESTDIR)$(docdir)

clean: ## Remove everything that was built
	cargo clean

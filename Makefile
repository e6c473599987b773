# `make demo` and `make test` do all the set-up that they need; `make help` lists the rest.

SHELL := bash
.DEFAULT_GOAL := help
.PHONY: help demo test soak fuzz bench doc man install clean

TARGET := $(or $(CARGO_TARGET_DIR),target)
# Where `make install` puts things; DESTDIR goes before all of it, for packagers.
prefix ?= /usr/local
bindir ?= $(prefix)/bin
datadir ?= $(prefix)/share
# Debian keeps mke2fs and its kin where users do not look.
export PATH := $(PATH):/usr/sbin:/sbin

help: ## This list
	@sed -nE 's/^([a-z]+):.*## (.*)/  make \1\t\2/p' Makefile | expand -t 16

demo: ## Set up, build, run the experiments for about a minute, check the image
	@scripts/demo

test: ## Set up; format, clippy, rustdoc, licences, model tests, all tests
	@scripts/test

soak: ## The long explorations: hours rather than minutes
	@scripts/setup test
	DIOXIDE_SOAK=1 cargo test --workspace --release -- --nocapture
	DIOXIDE=$(TARGET)/release/dioxide tests/foreign/run
	FUZZ_SECONDS=$${FUZZ_SECONDS:-600} scripts/fuzz

fuzz: ## Every fuzz target for FUZZ_SECONDS (60) each
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

install: ## The command, man pages, completions for bash, zsh, fish, under prefix (/usr/local)
	cargo build --locked --release -p dioxide-cli
	rm -rf $(TARGET)/man $(TARGET)/completions
	$(TARGET)/release/dioxide gen man $(TARGET)/man
	$(TARGET)/release/dioxide gen completions $(TARGET)/completions
	install -D -m 755 $(TARGET)/release/dioxide $(DESTDIR)$(bindir)/dioxide
	install -d $(DESTDIR)$(datadir)/man/man1
	install -m 644 $(TARGET)/man/*.1 $(DESTDIR)$(datadir)/man/man1
	install -D -m 644 $(TARGET)/completions/dioxide.bash $(DESTDIR)$(datadir)/bash-completion/completions/dioxide
	install -D -m 644 $(TARGET)/completions/_dioxide $(DESTDIR)$(datadir)/zsh/site-functions/_dioxide
	install -D -m 644 $(TARGET)/completions/dioxide.fish $(DESTDIR)$(datadir)/fish/vendor_completions.d/dioxide.fish

clean: ## Remove everything that was built
	cargo clean

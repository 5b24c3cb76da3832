# Every target sets up what it needs in .venv first. `make` alone prints what there is.
#
#   SCENARIO  a file in scenarios/ by its name, or a path      PROFILE  cpu | cuda
#   ARGS      more arguments for the command, as typed in a shell
#   ENGINE    cpu | cuda | none | auto (what `make setup` installs)
#   TORCH_INDEX  where pip finds PyTorch's CPU wheels, if it does not know
#   PYTHON    the interpreter to build .venv with              RUN  a folder under results/

# Exported, and quoted where used: a blank or a quote in a value can't change the command.
export SCENARIO PROFILE RUN ENGINE TORCH_INDEX PYTHON ARGS

MODEL ?= smollm2-135m-instruct
export MODEL
# As in harness/engines/embedded.py, which can't be asked before there is a .venv.
EMBEDDED = smollm2-135m-instruct
known-model = case ' $(EMBEDDED) ' in *" $$MODEL "*) ;; \
	*) printf 'there is no embedded model %s: MODEL is one of %s\n' "$$MODEL" '$(EMBEDDED)' >&2; exit 2;; esac

.DEFAULT_GOAL := help
.PHONY: help setup bench report model kvpress test check clean

help: ## print this
	@echo 'kvbench: what does each KV-cache strategy buy on vLLM?'
	@echo
	@awk -F':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' Makefile
	@echo
	@echo '  make bench SCENARIO=fp8_vs_fp16 [PROFILE=cpu|cuda] [ARGS="--repeats 1"]'

setup: ## build .venv: Python packages and the engine that this machine can run
	@sh requirements/setup.sh

bench: ## run a scenario and write its report (SCENARIO=name [PROFILE=cpu|cuda] [ARGS=…])
	@case "$$SCENARIO" in */*|*.yaml|*.yml) file="$$SCENARIO";; *) file="scenarios/$$SCENARIO.yaml";; esac; \
	if [ -z "$$SCENARIO" ]; then \
		echo 'make bench needs a scenario: make bench SCENARIO=name, where name is one of'; \
	elif [ ! -f "$$file" ] && [ ! -p "$$file" ]; then \
		printf 'there is no scenario %s: give the path of a YAML file, or one of\n' "$$SCENARIO"; \
	else exit 0; fi >&2; \
	ls scenarios/*.yaml 2>/dev/null | sed 's|.*/|  |; s|\.yaml$$||' >&2; exit 2
	@case "$${PROFILE:-cpu}" in cpu|cuda) ;; \
		*) printf 'there is no profile %s: PROFILE is cpu or cuda\n' "$$PROFILE" >&2; exit 2;; esac
	@sh requirements/setup.sh
	@.venv/bin/kvbench bench "$$SCENARIO" $${PROFILE:+--profile "$$PROFILE"} $(ARGS)

report: ## rebuild a report from what was stored (RUN=results/scenario/run [ARGS=…])
	@runs=$$(ls -d results/*/*/ 2>/dev/null | sed 's|^|  |; s|/$$||'); \
	case "$$ARGS" in *--out*) exit 0;; esac; \
	for place in "$$RUN" "results/$$RUN" results/*/"$$RUN"; do \
		if [ -n "$$RUN" ] && [ -e "$$place" ]; then exit 0; fi; \
	done; \
	if [ -n "$$RUN" ]; then printf 'there is no stored run %s\n' "$$RUN"; fi >&2; \
	if [ -z "$$runs" ]; then \
		echo 'make report needs a run, and none is stored here: make bench SCENARIO=smoke makes one'; \
	else \
		printf 'make report needs a run: make report RUN=path, where path is one of\n%s\n' "$$runs"; \
	fi >&2; exit 2
	@sh requirements/setup.sh
	@.venv/bin/kvbench report "$$RUN" $(ARGS)

model: ## fetch and convert the embedded model (MODEL=name)
	@$(known-model)
	@sh requirements/setup.sh
	@.venv/bin/kvbench model fetch "$$MODEL" $(ARGS)

kvpress: ## cache bytes and perplexity of NVIDIA's kvpress, in an environment of its own
	@$(known-model)
	@sh requirements/setup.sh
	@sh requirements/kvpress.sh $(ARGS)

test: setup ## run the tests, those with the real engine among them
	@.venv/bin/python -m pytest $(ARGS)

check: setup ## formatting, lint and types
	@.venv/bin/ruff format --check .
	@.venv/bin/ruff check .
	@.venv/bin/mypy

clean: ## remove .venv and caches; results, reports and the model cache stay
	rm -rf .venv .venv-kvpress .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist tests/artifacts tests/browser/node_modules
	find harness tests requirements -name __pycache__ -type d -prune -exec rm -rf {} +

bench-client: setup ## what our load client can drive and how true its stamps are, beside vllm bench serve
	@.venv/bin/python -m tests.bench.client $(ARGS)

crosscheck: setup ## load one real server with our client and with vllm bench serve, and compare
	@.venv/bin/python -m tests.bench.crosscheck $(ARGS)

.PHONY: bench-client crosscheck

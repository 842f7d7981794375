BEGIN TRANSACTION;
CREATE TABLE balance (
            at_s REAL PRIMARY KEY,
            n_nodes INTEGER NOT NULL, n_running INTEGER NOT NULL, n_queued INTEGER NOT NULL,
            cpu_mean REAL NOT NULL, cpu_stdev REAL NOT NULL, cpu_range REAL NOT NULL,
            mem_mean REAL NOT NULL, mem_stdev REAL NOT NULL,
            gpus INTEGER NOT NULL, gpus_reserved INTEGER NOT NULL, gpus_unused INTEGER NOT NULL,
            gpu_jobs_waiting INTEGER NOT NULL, wait_mean_s REAL NOT NULL);
INSERT INTO "balance" VALUES(7.0,4,1,2,0.5,0.1,0.2,0.3,0.05,8,2,1,3,60.0);
CREATE TABLE expected (
            job TEXT NOT NULL, ctime_s REAL NOT NULL,
            told_s REAL NOT NULL, expected_s REAL NOT NULL, start_s REAL,
            PRIMARY KEY (job, ctime_s)) WITHOUT ROWID;
CREATE TABLE jobs (
            seq INTEGER PRIMARY KEY AUTOINCREMENT,
            job TEXT NOT NULL, ctime_s REAL NOT NULL,
            user TEXT NOT NULL, script TEXT NOT NULL, shape TEXT NOT NULL, time_limit TEXT NOT NULL,
            queue TEXT NOT NULL, nodes TEXT NOT NULL, n_procs INTEGER NOT NULL, n_gpus INTEGER NOT NULL,
            queued_s REAL, start_s REAL, end_s REAL, exit_status INTEGER,
            runtime_s REAL, cpu_cores REAL, mem_bytes REAL, gpus REAL, gpu_mem_bytes REAL, rate REAL NOT NULL,
            source TEXT NOT NULL, said TEXT NOT NULL,
            UNIQUE (job, ctime_s));
INSERT INTO "jobs" VALUES(1,'1.head',1.0,'ada','relax','1x2','3600','batch','{"n1":2}',2,0,1.0,2.0,101.0,0,100.0,1.5,1073741824.0,NULL,NULL,1.0,'qstat','{}');
INSERT INTO "jobs" VALUES(2,'2.head',1.0,'ada','relax','1x2','3600','batch','{"n1":2}',2,0,1.0,2.0,102.0,0,100.0,1.5,1073741824.0,NULL,NULL,1.0,'qstat','{}');
CREATE TABLE outcomes (
            seq INTEGER PRIMARY KEY AUTOINCREMENT,
            job TEXT NOT NULL, ctime_s REAL NOT NULL, start_s REAL NOT NULL,
            made_s REAL NOT NULL, first_s REAL NOT NULL, last_s REAL NOT NULL,
            n_better INTEGER NOT NULL, n_broken INTEGER NOT NULL, changes TEXT NOT NULL,
            UNIQUE (job, ctime_s));
CREATE TABLE pauses (
            kind TEXT NOT NULL, job TEXT NOT NULL, node TEXT NOT NULL,
            failures INTEGER NOT NULL, until_s REAL NOT NULL, why TEXT NOT NULL,
            PRIMARY KEY (kind, job, node)) WITHOUT ROWID;
CREATE TABLE pending (
            job TEXT NOT NULL, ctime_s REAL NOT NULL, since_s REAL NOT NULL, said TEXT NOT NULL,
            PRIMARY KEY (job, ctime_s)) WITHOUT ROWID;
INSERT INTO "pending" VALUES('3.head',5.0,60.0,'said');
CREATE TABLE position (
            id INTEGER PRIMARY KEY CHECK (id = 1), file TEXT NOT NULL, offset INTEGER NOT NULL);
CREATE TABLE promises (
            job TEXT NOT NULL, ctime_s REAL NOT NULL,
            start_s REAL NOT NULL, allocation TEXT NOT NULL, length_s REAL NOT NULL, made_s REAL NOT NULL,
            first_s REAL NOT NULL, first_made_s REAL NOT NULL, why_broken TEXT NOT NULL,
            is_withdrawn INTEGER NOT NULL, n_better INTEGER NOT NULL, n_broken INTEGER NOT NULL,
            changes TEXT NOT NULL,
            PRIMARY KEY (job, ctime_s)) WITHOUT ROWID;
CREATE TABLE reservations (
            name TEXT PRIMARY KEY, nodes TEXT NOT NULL, start_s REAL NOT NULL, end_s REAL NOT NULL,
            users TEXT NOT NULL, made_by TEXT NOT NULL, made_s REAL NOT NULL,
            token TEXT UNIQUE, lease_until_s REAL, boot_id TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE usage (
            kind TEXT NOT NULL, name TEXT NOT NULL,
            proc_s REAL NOT NULL, gpu_s REAL NOT NULL, at_s REAL NOT NULL,
            PRIMARY KEY (kind, name)) WITHOUT ROWID;
INSERT INTO "usage" VALUES('user','ada',3.97841188010351743276e+02,0.0,60.0);
CREATE TABLE uses (
            job TEXT NOT NULL, ctime_s REAL NOT NULL, node TEXT NOT NULL,
            n INTEGER NOT NULL, last_s REAL NOT NULL, cpu_cores REAL NOT NULL, mem_bytes REAL NOT NULL,
            gpus REAL NOT NULL, gpu_mem_bytes REAL NOT NULL,
            knows_cpu INTEGER NOT NULL, knows_gpu INTEGER NOT NULL,
            PRIMARY KEY (job, ctime_s, node)) WITHOUT ROWID;
INSERT INTO "uses" VALUES('3.head',5.0,'n1',3,50.0,4.5,1000000000.0,0.5,100000000.0,1,0);
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('jobs',2);
COMMIT;
PRAGMA user_version = 5;

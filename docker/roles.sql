-- A role of PostgreSQL for each kind of process, none of which can change or delete an event. Run it as the owner of the
-- tables, after each `alembic upgrade head`:
--
--   psql -f docker/roles.sql
--   psql -c "ALTER ROLE stagetree_api LOGIN PASSWORD '...'"      and so for each role
--
-- Then STAGETREE_DATABASE_URL of the API, the scheduler and the slots names its role. Migrations, `stagetree gc`,
-- `backup`, `restore`, `strike`, `archive` and `erase` are for the owner.

DO $$
DECLARE role text;
BEGIN
  FOREACH role IN ARRAY ARRAY['stagetree_api', 'stagetree_scheduler', 'stagetree_slot'] LOOP
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = role) THEN
      EXECUTE format('CREATE ROLE %I', role);
    END IF;
  END LOOP;
END $$;

GRANT USAGE ON SCHEMA public TO stagetree_api, stagetree_scheduler, stagetree_slot;
REVOKE ALL ON ALL TABLES IN SCHEMA public FROM stagetree_api, stagetree_scheduler, stagetree_slot;

-- All of them read the log and append to it, and see who may write now.
GRANT SELECT ON alembic_version, events, archive, streams, log_head, idempotency, studies, slots, chains, schedulers, installation
  TO stagetree_api, stagetree_scheduler, stagetree_slot;
GRANT INSERT ON events TO stagetree_api, stagetree_scheduler, stagetree_slot;
GRANT INSERT, UPDATE ON streams, log_head, idempotency TO stagetree_api, stagetree_scheduler, stagetree_slot;
GRANT UPDATE ON studies TO stagetree_api, stagetree_scheduler, stagetree_slot;

-- The API: studies come and go, tokens are its own, and an operator releases a slot.
GRANT INSERT, DELETE ON studies TO stagetree_api;
GRANT SELECT, INSERT, UPDATE, DELETE ON tokens TO stagetree_api;
GRANT SELECT, DELETE ON trial_logs TO stagetree_api;
GRANT UPDATE ON slots TO stagetree_api;

-- The scheduler: it gives chains, takes them away, and removes rows that serve no longer. It sees no token.
GRANT INSERT, UPDATE, DELETE ON chains, schedulers TO stagetree_scheduler;
GRANT UPDATE, DELETE ON slots TO stagetree_scheduler;
GRANT DELETE ON idempotency TO stagetree_scheduler;
GRANT INSERT, UPDATE ON installation TO stagetree_scheduler, stagetree_slot;

-- A slot: its own row, and the chain that it has. It sees no token.
GRANT INSERT, UPDATE, DELETE ON slots TO stagetree_slot;
GRANT UPDATE ON chains TO stagetree_slot;
GRANT SELECT, INSERT, UPDATE, DELETE ON trial_logs TO stagetree_slot;

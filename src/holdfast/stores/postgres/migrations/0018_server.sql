-- works with: 9
-- A worker of autovacuum comes and goes, and has a database; the helpers that last as long as the run have none. Once
-- the host's pids have begun again from low numbers, it looked like another run of the server for a while, in which a
-- death is found by its lease only. A worker whose row names such a run is judged by its leases until its session is
-- made anew.

CREATE OR REPLACE FUNCTION {schema}.server() RETURNS text LANGUAGE sql STABLE AS $$
SELECT concat(extract(epoch FROM pg_postmaster_start_time()), ' ', min(pid))
FROM pg_stat_get_activity(NULL) WHERE usesysid IS NULL AND datid IS NULL
$$;

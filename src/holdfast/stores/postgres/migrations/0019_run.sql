-- works with: 9
-- A server from 18 on lists sessions that are being opened among its helpers. Once the host's pids have begun again from
-- low numbers, they looked like another run of the server: a worker that was enrolled in such a moment was found dead by
-- its lease only. A server from 15 on resets its counters when it recovers from a crash, which shows the run as well.

CREATE OR REPLACE FUNCTION {schema}.server() RETURNS text LANGUAGE sql STABLE AS $$
SELECT concat(extract(epoch FROM pg_postmaster_start_time()), ' ', CASE
    WHEN current_setting('server_version_num')::int >= 150000
        THEN extract(epoch FROM pg_stat_get_bgwriter_stat_reset_time())::text
    ELSE (SELECT min(pid)::text FROM pg_stat_get_activity(NULL) WHERE usesysid IS NULL AND datid IS NULL)
END)
$$;

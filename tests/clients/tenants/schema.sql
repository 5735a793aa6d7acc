-- One database of the tenants' world, made by a superuser. The setting `tenants.world` holds world.json: who there is, and
-- how many rows each tenant has in this database.

-- Roles are the cluster's: the first database makes them. Tenants are roles without a login; each user may take them.
DO $$
DECLARE
  world jsonb := current_setting('tenants.world');
  who text;
  tenant text;
BEGIN
  FOR who IN SELECT jsonb_array_elements_text(world -> 'users') LOOP
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = who) THEN
      EXECUTE format('CREATE ROLE %I LOGIN', who);
    END IF;
  END LOOP;
  FOR tenant IN SELECT t ->> 'name' FROM jsonb_array_elements(world -> 'tenants') t LOOP
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = tenant) THEN
      EXECUTE format('CREATE ROLE %I', tenant);
      FOR who IN SELECT jsonb_array_elements_text(world -> 'users') LOOP
        EXECUTE format('GRANT %I TO %I', tenant, who);
      END LOOP;
    END IF;
  END LOOP;
  -- The table that has other columns under the same name in each database.
  EXECUTE format('CREATE TABLE notes (%s)', world -> 'notes' ->> current_database());
END $$;

-- What the harness compares entries with when all is done.
CREATE TABLE tenants AS
  SELECT t ->> 'name' AS name, (t ->> 'days')::int AS days, (t ->> 'epoch')::int AS epoch,
         (t -> 'orders' ->> current_database())::int AS orders, (t -> 'notes' ->> current_database())::int AS notes
  FROM jsonb_array_elements(current_setting('tenants.world')::jsonb -> 'tenants') t;

-- Its OID is another one in each database.
CREATE TYPE mood AS ENUM ('low', 'fine');
CREATE TABLE orders (id int, tenant text, place text, amount int, feeling mood, PRIMARY KEY (tenant, id));
-- Clients insert the day and the time as literals, which mean what its home's DateStyle and TimeZone make of them.
CREATE TABLE entries (client text, round int, tenant text, home text, place text, day date, at timestamptz, PRIMARY KEY (client, round));

INSERT INTO orders
  SELECT id, name, current_database(), id * 10, 'fine' FROM tenants, generate_series(1, orders) id;
INSERT INTO notes (id, tenant, place)
  SELECT id, name, current_database() FROM tenants, generate_series(1, notes) id;

-- A tenant is known by the setting or by the role. Who is neither sees nothing.
DO $$
DECLARE
  name text;
BEGIN
  FOREACH name IN ARRAY '{orders, notes, entries}'::text[] LOOP
    EXECUTE format('ALTER TABLE %I ENABLE ROW LEVEL SECURITY', name);
    EXECUTE format('CREATE POLICY by_setting ON %I USING (tenant = nullif(current_setting(''app.tenant'', true), ''''))', name);
    EXECUTE format('CREATE POLICY by_role ON %I USING (tenant = current_user)', name);
    EXECUTE format('GRANT SELECT, INSERT ON %I TO PUBLIC', name);
  END LOOP;
END $$;
ANALYZE;

// pgjdbc for tenants (../tenants/README.md): the first argument is the way it executes, as a setting of its URL, such as
// prepareThreshold=1 or preferQueryMode=simple.

import com.google.gson.Gson;
import java.io.Reader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.ResultSetMetaData;
import java.sql.SQLException;
import java.sql.Statement;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicInteger;

public final class PgjdbcTenants {
  static final class Tenant {
    String name;
    String datestyle;
    String timezone;
    int days;
    int epoch;
    Map<String, Integer> orders;
    Map<String, Integer> notes;
  }

  static final class Way {
    String name;
    List<List<Object>> outside;
    List<List<Object>> inside;
    List<List<Object>> reset;
  }

  static final class Read {
    String name;
    String text;
    List<Object> args;
    String rows;
    Map<String, List<String>> columns;
  }

  static final class World {
    List<Tenant> tenants;
    List<String> databases;
    List<String> users;
    List<Way> ways;
    List<Read> statements;
    List<Object> insert;
    Read entry;
  }

  /** What all clients have counted of one way. */
  static final class Counts {
    final AtomicInteger reads = new AtomicInteger();
    final AtomicInteger inserts = new AtomicInteger();
    final List<String> faults = new ArrayList<>();

    void fault(String text) {
      synchronized (faults) {
        faults.add(text);
      }
      FAULTS.incrementAndGet();
    }
  }

  static final int READS = 8;
  static final int ROUNDS = 9;
  static final int ENOUGH = 100;
  static final AtomicInteger FAULTS = new AtomicInteger();
  static final Map<String, Counts> TALLY = new LinkedHashMap<>();
  static World world;
  static String settings;

  static int number(String name, int otherwise) {
    String text = System.getenv(name);
    return text == null ? otherwise : Integer.parseInt(text);
  }

  static final class Client implements Runnable {
    final int number;
    final int goal;
    final String name;
    final String database;
    final String user;
    int reads;
    int round;
    Connection connection;

    Client(int number, int goal) {
      this.number = number;
      this.goal = goal;
      name = "pgjdbc-" + settings + "-" + number;
      database = world.databases.get(number % 2);
      user = world.users.get(number / 2 % 4 == 3 ? 1 : 0);
    }

    String told(Tenant tenant) {
      return name + " (" + user + ", " + database + "), round " + round + ", as " + (tenant == null ? "nobody" : tenant.name);
    }

    /** Whose DateStyle and TimeZone this connection has. */
    Tenant home() {
      return world.tenants.get((number / 2 + round / ROUNDS) % 6);
    }

    /** Numbers stay numbers. */
    Object filled(Object value, Tenant who) {
      if (value instanceof Number) return ((Number) value).intValue();
      if (value.equals("{client}")) return name;
      if (value.equals("{round}")) return round;
      Tenant home = home();
      return ((String) value).replace("{tenant}", who.name).replace("{home}", home.name)
          .replace("{datestyle}", home.datestyle).replace("{timezone}", home.timezone);
    }

    PreparedStatement prepared(String text, List<Object> values, Tenant who) throws SQLException {
      PreparedStatement statement = connection.prepareStatement(text.replaceAll("\\$\\d", "?"));
      for (int at = 0; at < values.size(); at++) statement.setObject(at + 1, filled(values.get(at), who));
      return statement;
    }

    void run(List<Object> parts, Tenant who) throws SQLException {
      String text = (String) filled(parts.get(0), who);
      if (parts.size() == 1) {
        try (Statement statement = connection.createStatement()) {
          statement.execute(text);
        }
        return;
      }
      try (PreparedStatement statement = prepared(text, parts.subList(1, parts.size()), who)) {
        statement.execute();
      }
    }

    void read(Way way, Read read, Tenant who, Tenant tenant) throws SQLException {
      List<Map<String, Object>> rows = new ArrayList<>();
      List<String> columns = new ArrayList<>();
      try (PreparedStatement statement = prepared(read.text, read.args, who); ResultSet result = statement.executeQuery()) {
        ResultSetMetaData told = result.getMetaData();
        for (int at = 1; at <= told.getColumnCount(); at++) columns.add(told.getColumnLabel(at));
        while (result.next()) {
          Map<String, Object> row = new LinkedHashMap<>();
          for (int at = 1; at <= columns.size(); at++) row.put(columns.get(at - 1), result.getObject(at));
          rows.add(row);
        }
      }
      reads++;
      Counts counts = TALLY.get(way.name);
      counts.reads.incrementAndGet();
      String fault = wrong(read, columns, rows, tenant);
      if (fault != null) counts.fault(told(tenant) + ", " + read.name + ": " + fault);
    }

    /** What is wrong with the rows that a reader of this tenant (null: of nobody's) got; null if nothing is. */
    String wrong(Read read, List<String> columns, List<Map<String, Object>> rows, Tenant tenant) {
      if (tenant == null) return rows.isEmpty() ? null : rows.size() + " rows for nobody: " + rows.get(0);
      int orders = tenant.orders.get(database);
      int count = read.rows.equals("single") ? 1 : read.rows.equals("orders") ? orders : tenant.notes.get(database);
      if (rows.size() != count) return rows.size() + " rows, not " + count + ": " + (rows.isEmpty() ? "" : rows.get(0));
      if (!columns.equals(read.columns.get(database))) return "columns " + columns;
      Map<String, Object> expected =
          Map.of("tenant", tenant.name, "place", database, "days", home().days, "epoch", home().epoch, "n", orders);
      for (Map<String, Object> row : rows) {
        for (Map.Entry<String, Object> value : row.entrySet()) {
          Object want = expected.get(value.getKey());
          if (want != null && !want.equals(value.getValue())) return value.getKey() + " is " + value.getValue() + ", not " + want;
        }
      }
      return null;
    }

    void work(Way way, Tenant tenant, boolean inserts) throws SQLException {
      if (inserts) {
        run(world.insert, tenant);
        TALLY.get(way.name).inserts.incrementAndGet();
      }
      for (int n = 0; n < READS; n++) {
        read(way, world.statements.get((number + round + n) % world.statements.size()), tenant, tenant);
      }
      if (inserts) read(way, world.entry, tenant, tenant);
    }

    void round(Way way, Tenant tenant, Tenant other) throws SQLException {
      boolean inserts = (number + round) % 4 == 0;
      boolean transaction = !way.inside.isEmpty();
      for (List<Object> statement : way.outside) run(statement, transaction ? other : tenant);
      if (transaction) {
        connection.setAutoCommit(false);
        for (List<Object> statement : way.inside) run(statement, tenant);
        work(way, tenant, inserts);
        if (round % 3 == 0 && !inserts) connection.rollback();
        else connection.commit();
        connection.setAutoCommit(true);
        if (!way.outside.isEmpty()) read(way, world.statements.get(round % world.statements.size()), tenant, other);
      } else {
        work(way, tenant, inserts);
      }
      // It leaves with all that it has set.
      if (round % ROUNDS == ROUNDS - 1) return;
      for (List<Object> statement : way.reset) run(statement, tenant);
      for (int n = 0; n < 2; n++) read(way, world.statements.get((round + n) % (world.statements.size() - 1)), tenant, null);
    }

    @Override
    public void run() {
      String url = "jdbc:postgresql://127.0.0.1:" + System.getenv("TENANTS_PORT") + "/" + database
          + "?sslmode=disable&connectTimeout=60&socketTimeout=60&user=" + user + "&" + settings;
      for (; reads < goal && FAULTS.get() < ENOUGH; round++) {
        int at = number / 16 + round + round / 24;
        Way way = world.ways.get((number / 2 + round) % world.ways.size());
        Tenant tenant = world.tenants.get(at % 6);
        // Whose the session is around a transaction that is another tenant's.
        Tenant other = world.tenants.get((at + 1 + round % 5) % 6);
        try {
          if (connection == null) connection = DriverManager.getConnection(url);
          round(way, tenant, other);
        } catch (SQLException error) {
          TALLY.get(way.name).fault(told(tenant) + ": " + error.getSQLState() + " " + error.getMessage());
          // Its state is not known: the next round has a new connection.
          close();
        }
        if (round % ROUNDS == ROUNDS - 1) close();
      }
      close();
    }

    void close() {
      try {
        if (connection != null) connection.close();
      } catch (SQLException error) {
        // What was wrong with it has been told.
      }
      connection = null;
    }
  }

  public static void main(String[] arguments) throws Exception {
    settings = arguments[0];
    try (Reader text = Files.newBufferedReader(Path.of(System.getenv("TENANTS_WORLD"), "world.json"))) {
      world = new Gson().fromJson(text, World.class);
    }
    for (Way way : world.ways) TALLY.put(way.name, new Counts());
    int first = number("TENANTS_FIRST", 0);
    int clients = number("TENANTS_CLIENTS", 48);
    List<Thread> threads = new ArrayList<>();
    for (int n = first; n < first + clients; n++) {
      threads.add(new Thread(new Client(n, number("TENANTS_READS", 10000) / clients)));
    }
    for (Thread thread : threads) thread.start();
    for (Thread thread : threads) thread.join();
    boolean failed = false;
    int number = 0;
    for (Map.Entry<String, Counts> way : TALLY.entrySet()) {
      Counts counts = way.getValue();
      // Without a read, nothing was tested.
      boolean good = counts.faults.isEmpty() && counts.reads.get() > 0;
      failed |= !good;
      String end = counts.faults.isEmpty() ? "" : ", " + counts.faults.size() + " faults";
      System.out.println((good ? "ok " : "not ok ") + ++number + " - " + way.getKey() + ": " + counts.reads + " reads, " + counts.inserts + " inserts" + end);
      for (String fault : counts.faults.subList(0, Math.min(3, counts.faults.size()))) System.out.println("# " + fault);
    }
    System.out.println("1.." + number);
    System.exit(failed ? 1 : 0);
  }
}

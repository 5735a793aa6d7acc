// pgjdbc at its usual work, in each of its ways to execute a statement: parameters, transactions, batches, cursors, COPY,
// notifications, cancel, large objects, metadata. DATABASE_URL says where.

import java.io.StringReader;
import java.io.StringWriter;
import java.math.BigDecimal;
import java.net.URI;
import java.net.URLDecoder;
import java.nio.charset.StandardCharsets;
import java.sql.Array;
import java.sql.BatchUpdateException;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Savepoint;
import java.sql.Statement;
import java.sql.Timestamp;
import java.time.LocalDate;
import java.time.OffsetDateTime;
import java.time.ZoneOffset;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Properties;
import java.util.UUID;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.postgresql.PGConnection;
import org.postgresql.PGNotification;
import org.postgresql.copy.CopyManager;
import org.postgresql.largeobject.LargeObject;
import org.postgresql.largeobject.LargeObjectManager;

public final class PgjdbcUsual {
  interface Work {
    void run(String way) throws Exception;
  }

  static final Map<String, String> WAYS = new LinkedHashMap<>();

  static {
    // By default it prepares on the server from the fifth use on.
    WAYS.put("as it comes", "");
    WAYS.put("prepared at once", "prepareThreshold=-1");
    WAYS.put("never prepared", "prepareThreshold=0");
    WAYS.put("two prepared", "prepareThreshold=1&preparedStatementCacheQueries=2");
    WAYS.put("simple", "preferQueryMode=simple");
    WAYS.put("extended for prepared", "preferQueryMode=extendedForPrepared");
    WAYS.put("batches rewritten, savepoints", "reWriteBatchedInserts=true&autosave=always&cleanupSavepoints=true");
  }

  static Connection connect(String settings) throws SQLException {
    return connect(System.getenv("DATABASE_URL"), settings);
  }

  static Connection connect(String where, String settings) throws SQLException {
    URI url = URI.create(where);
    String[] who = url.getUserInfo().split(":", 2);
    Properties properties = new Properties();
    properties.setProperty("user", who[0]);
    if (who.length > 1) properties.setProperty("password", URLDecoder.decode(who[1], StandardCharsets.UTF_8));
    String query = url.getQuery() == null ? "" : url.getQuery() + "&";
    return DriverManager.getConnection("jdbc:postgresql://" + url.getAuthority().replaceAll(".*@", "") + url.getPath() + "?" + query + settings, properties);
  }

  static String unique() {
    return "jdbc_" + UUID.randomUUID().toString().substring(0, 13).replace("-", "");
  }

  static String table(Connection connection, String columns) throws SQLException {
    String name = unique();
    run(connection, "CREATE TABLE " + name + " (" + columns + ")");
    return name;
  }

  static void run(Connection connection, String sql) throws SQLException {
    try (Statement statement = connection.createStatement()) {
      statement.execute(sql);
    }
  }

  static Object one(Connection connection, String sql, Object... values) throws SQLException {
    try (PreparedStatement statement = connection.prepareStatement(sql)) {
      for (int at = 0; at < values.length; at++) statement.setObject(at + 1, values[at]);
      try (ResultSet rows = statement.executeQuery()) {
        rows.next();
        return rows.getObject(1);
      }
    }
  }

  static void equal(Object got, Object want) {
    if (!Objects.deepEquals(got, want)) throw new AssertionError("got " + got + ", not " + want);
  }

  static String refused(String what, Work work) throws Exception {
    try {
      work.run(null);
    } catch (SQLException error) {
      return error.getSQLState();
    }
    throw new AssertionError(what + " went through");
  }

  static void parametersAndTypes(String way) throws Exception {
    try (Connection connection = connect(way)) {
      for (int turn = 0; turn < 20; turn++) {
        equal(one(connection, "SELECT ?::int4 + ?::int4", turn, 2), turn + 2);
        equal(one(connection, "SELECT ?::text || 'é✓'", "x'" + turn), "x'" + turn + "é✓");
        equal(one(connection, "SELECT ?::int8", 1L << 40), 1L << 40);
        equal(one(connection, "SELECT ?::numeric", new BigDecimal("12345678901234567890.123456789")), new BigDecimal("12345678901234567890.123456789"));
        equal(one(connection, "SELECT ?::bool", true), true);
        equal(one(connection, "SELECT ?::text", (Object) null), null);
        equal(one(connection, "SELECT ?::bytea", new byte[] {0, 1, -1}), new byte[] {0, 1, -1});
      }
      UUID id = UUID.randomUUID();
      equal(one(connection, "SELECT ?::uuid", id), id);
      equal(one(connection, "SELECT ?::date::text", LocalDate.of(1066, 10, 14)), "1066-10-14");
      OffsetDateTime at = OffsetDateTime.of(2024, 2, 29, 12, 30, 1, 5000, ZoneOffset.UTC);
      equal(((Timestamp) one(connection, "SELECT ?::timestamptz", at)).toInstant(), at.toInstant());
      Array array = connection.createArrayOf("int4", new Object[] {1, null, 3});
      equal(((Array) one(connection, "SELECT ?::int4[]", array)).getArray(), new Integer[] {1, null, 3});
      try (Statement statement = connection.createStatement()) {
        int rows = 0;
        for (ResultSet all = statement.executeQuery("SELECT n FROM generate_series(1, 10000) n"); all.next(); ) rows++;
        equal(rows, 10000);
        equal(statement.execute("SELECT 1; SELECT 2"), true);
        equal(statement.getMoreResults(), true);
        equal(statement.getMoreResults(), false);
      }
    }
  }

  static void transactions(String way) throws Exception {
    try (Connection connection = connect(way)) {
      String name = table(connection, "n int4 PRIMARY KEY");
      connection.setAutoCommit(false);
      run(connection, "INSERT INTO " + name + " VALUES (1)");
      Savepoint point = connection.setSavepoint();
      equal(refused("a duplicate", w -> run(connection, "INSERT INTO " + name + " VALUES (1)")), "23505");
      connection.rollback(point);
      run(connection, "INSERT INTO " + name + " VALUES (2)");
      connection.commit();
      run(connection, "DELETE FROM " + name);
      connection.rollback();
      equal(one(connection, "SELECT count(*) FROM " + name), 2L);
      connection.rollback();
      connection.setTransactionIsolation(Connection.TRANSACTION_SERIALIZABLE);
      equal(one(connection, "SHOW transaction_isolation"), "serializable");
      connection.rollback();
      connection.setTransactionIsolation(Connection.TRANSACTION_READ_COMMITTED);
      connection.setReadOnly(true);
      equal(one(connection, "SELECT count(*) FROM " + name), 2L);
      equal(refused("a read-only write", w -> run(connection, "INSERT INTO " + name + " VALUES (9)")), "25006");
      connection.rollback();
      connection.setReadOnly(false);
      run(connection, "INSERT INTO " + name + " VALUES (3)");
      connection.commit();
      connection.setAutoCommit(true);
      equal(one(connection, "SELECT count(*) FROM " + name), 3L);
    }
  }

  static void batches(String way) throws Exception {
    try (Connection connection = connect(way)) {
      String name = table(connection, "n int4 PRIMARY KEY, t text");
      try (PreparedStatement insert = connection.prepareStatement("INSERT INTO " + name + " VALUES (?, ?)")) {
        for (int n = 0; n < 1000; n++) {
          insert.setInt(1, n);
          insert.setString(2, "row " + n);
          insert.addBatch();
        }
        equal(insert.executeBatch().length, 1000);
        for (int n : new int[] {5000, 1}) {
          insert.setInt(1, n);
          insert.setString(2, "x");
          insert.addBatch();
        }
        try {
          insert.executeBatch();
          throw new AssertionError("a duplicate went in");
        } catch (BatchUpdateException error) {
          equal(error.getSQLState(), "23505");
        }
      }
      equal(one(connection, "SELECT count(*) FROM " + name + " WHERE n < 5000"), 1000L);
      try (PreparedStatement insert = connection.prepareStatement("INSERT INTO " + name + " VALUES (?, 'k')", Statement.RETURN_GENERATED_KEYS)) {
        insert.setInt(1, 9000);
        insert.executeUpdate();
        ResultSet keys = insert.getGeneratedKeys();
        keys.next();
        equal(keys.getInt("n"), 9000);
      }
    }
  }

  static void portions(String way) throws Exception {
    try (Connection connection = connect(way)) {
      connection.setAutoCommit(false);
      try (PreparedStatement select = connection.prepareStatement("SELECT n FROM generate_series(1, ?) n")) {
        select.setFetchSize(70);
        for (int turn = 0; turn < 7; turn++) {
          select.setInt(1, 500);
          int rows = 0;
          try (ResultSet all = select.executeQuery()) {
            while (all.next()) {
              equal(all.getInt(1), ++rows);
              // Something else between two portions.
              if (rows % 200 == 0) equal(one(connection, "SELECT 7"), 7);
            }
          }
          equal(rows, 500);
        }
        // Left before its end.
        select.executeQuery().next();
      }
      connection.commit();
      equal(one(connection, "SELECT 7"), 7);
      connection.commit();
    }
  }

  static void copies(String way) throws Exception {
    try (Connection connection = connect(way)) {
      String name = table(connection, "n int4, t text");
      CopyManager copy = connection.unwrap(PGConnection.class).getCopyAPI();
      StringBuilder lines = new StringBuilder();
      for (int n = 0; n < 5000; n++) lines.append(n).append("\trow ").append(n).append('\n');
      equal(copy.copyIn("COPY " + name + " FROM STDIN", new StringReader(lines.toString())), 5000L);
      StringWriter out = new StringWriter();
      equal(copy.copyOut("COPY (SELECT * FROM " + name + " ORDER BY n) TO STDOUT", out), 5000L);
      equal(out.toString(), lines.toString());
      equal(refused("a COPY of nonsense", w -> copy.copyIn("COPY " + name + " FROM STDIN", new StringReader("x\ty\n"))), "22P02");
      equal(one(connection, "SELECT count(*) FROM " + name), 5000L);
    }
  }

  static void manyConnections(String way) throws Exception {
    String name;
    try (Connection connection = connect(way)) {
      name = table(connection, "worker int4, n int4");
    }
    ExecutorService threads = Executors.newFixedThreadPool(12);
    List<Future<?>> all = new ArrayList<>();
    for (int worker = 0; worker < 12; worker++) {
      int own = worker;
      all.add(threads.submit(() -> {
        try (Connection connection = connect(way)) {
          for (int n = 0; n < 20; n++) {
            try (PreparedStatement insert = connection.prepareStatement("INSERT INTO " + name + " VALUES (?, ?)")) {
              insert.setInt(1, own);
              insert.setInt(2, n);
              insert.executeUpdate();
            }
            equal(one(connection, "SELECT count(*) FROM " + name + " WHERE worker = ?", own), n + 1L);
          }
        }
        return null;
      }));
    }
    for (Future<?> one : all) one.get(60, TimeUnit.SECONDS);
    threads.shutdown();
  }

  static void aTableThatChanges(String way) throws Exception {
    try (Connection connection = connect(way)) {
      String name = table(connection, "a int4");
      run(connection, "INSERT INTO " + name + " VALUES (1)");
      try (PreparedStatement select = connection.prepareStatement("SELECT * FROM " + name)) {
        for (int columns = 1; columns < 5; columns++) {
          for (int turn = 0; turn < 8; turn++) {
            try (ResultSet rows = select.executeQuery()) {
              equal(rows.getMetaData().getColumnCount(), columns);
            }
          }
          run(connection, "ALTER TABLE " + name + " ADD COLUMN c" + columns + " text");
        }
      }
    }
  }

  static void notifications(String way) throws Exception {
    try (Connection connection = connect(way); Connection other = connect(way)) {
      String channel = unique();
      run(connection, "LISTEN " + channel);
      run(other, "NOTIFY " + channel + ", 'one'");
      run(other, "NOTIFY " + channel + ", 'two'");
      List<String> heard = new ArrayList<>();
      while (heard.size() < 2) {
        PGNotification[] some = connection.unwrap(PGConnection.class).getNotifications(20000);
        if (some == null || some.length == 0) throw new AssertionError("heard only " + heard);
        for (PGNotification one : some) heard.add(one.getParameter());
      }
      equal(heard, Arrays.asList("one", "two"));
      run(connection, "DO $$ BEGIN RAISE NOTICE 'said'; END $$");
    }
  }

  static void cancelling(String way) throws Exception {
    try (Connection connection = connect(way); Statement statement = connection.createStatement()) {
      statement.setQueryTimeout(1);
      equal(refused("ten minutes of sleep", w -> statement.execute("SELECT pg_sleep(600)")), "57014");
      statement.setQueryTimeout(0);
      equal(one(connection, "SELECT 7"), 7);
      for (int turn = 0; turn < 3; turn++) {
        Thread canceller = new Thread(() -> {
          try {
            Thread.sleep(200);
            statement.cancel();
          } catch (InterruptedException | SQLException error) {
            throw new RuntimeException(error);
          }
        });
        canceller.start();
        equal(refused("ten minutes of sleep", w -> statement.execute("SELECT pg_sleep(600)")), "57014");
        canceller.join();
        equal(one(connection, "SELECT 7"), 7);
      }
    }
  }

  static void errorsKeepTheConnection(String way) throws Exception {
    try (Connection connection = connect(way)) {
      for (int turn = 0; turn < 7; turn++) {
        equal(refused("nonsense", w -> one(connection, "SELEC 1")), "42601");
        equal(refused("a table that is not there", w -> one(connection, "SELECT * FROM no_such_table WHERE n = ?", 1)), "42P01");
        equal(refused("a division by zero", w -> one(connection, "SELECT 1 / ?::int4", 0)), "22012");
        equal(one(connection, "SELECT 7"), 7);
      }
    }
  }

  static void largeObjects(String way) throws Exception {
    try (Connection connection = connect(way)) {
      connection.setAutoCommit(false);
      LargeObjectManager objects = connection.unwrap(PGConnection.class).getLargeObjectAPI();
      long oid = objects.createLO(LargeObjectManager.READWRITE);
      try (LargeObject object = objects.open(oid, LargeObjectManager.READWRITE)) {
        object.write(new byte[100_000]);
        equal(object.size(), 100_000);
      }
      objects.delete(oid);
      connection.commit();
    }
  }

  static void metadata(String way) throws Exception {
    try (Connection connection = connect(way)) {
      String name = table(connection, "n int4 PRIMARY KEY, t text NOT NULL");
      try (ResultSet columns = connection.getMetaData().getColumns(null, null, name, null)) {
        columns.next();
        equal(columns.getString("COLUMN_NAME"), "n");
        columns.next();
        equal(columns.getString("IS_NULLABLE"), "NO");
      }
      try (ResultSet keys = connection.getMetaData().getPrimaryKeys(null, null, name)) {
        keys.next();
        equal(keys.getString("COLUMN_NAME"), "n");
      }
      // A statement that is never parsed on its own cannot be described.
      if (way.contains("preferQueryMode=simple")) return;
      try (PreparedStatement select = connection.prepareStatement("SELECT * FROM " + name + " WHERE n = ?")) {
        equal(select.getMetaData().getColumnCount(), 2);
        equal(select.getParameterMetaData().getParameterTypeName(1), "int4");
      }
      equal(connection.isValid(20), true);
    }
  }

  static void sessionSettings(String way) throws Exception {
    try (Connection connection = connect(way + "&ApplicationName=jdbc%20tests&currentSchema=nowhere,public&options=-c%20statement_timeout=77s")) {
      for (int turn = 0; turn < 8; turn++) {
        equal(one(connection, "SHOW application_name"), "jdbc tests");
        equal(one(connection, "SHOW search_path"), "nowhere,public");
        equal(one(connection, "SHOW statement_timeout"), "77s");
      }
      connection.setSchema("public");
      connection.setClientInfo("ApplicationName", "other");
      for (int turn = 0; turn < 8; turn++) {
        equal(connection.getSchema(), "public");
        equal(one(connection, "SHOW application_name"), "other");
      }
    }
  }

  static void tls(String way) throws Exception {
    String where = System.getenv("DATABASE_TLS_URL");
    if (where == null) return;
    // It prefers TLS; and with sslmode=require it insists.
    for (String settings : new String[] {"", "sslmode=require"}) {
      try (Connection connection = connect(where, settings)) {
        equal(one(connection, "SELECT 7"), 7);
      }
    }
  }

  public static void main(String[] arguments) {
    Map<String, Work> works = new LinkedHashMap<>();
    works.put("parameters and types", PgjdbcUsual::parametersAndTypes);
    works.put("transactions", PgjdbcUsual::transactions);
    works.put("batches", PgjdbcUsual::batches);
    works.put("portions", PgjdbcUsual::portions);
    works.put("COPY", PgjdbcUsual::copies);
    works.put("many connections", PgjdbcUsual::manyConnections);
    works.put("a table that changes", PgjdbcUsual::aTableThatChanges);
    works.put("notifications", PgjdbcUsual::notifications);
    works.put("cancelling", PgjdbcUsual::cancelling);
    works.put("errors keep the connection", PgjdbcUsual::errorsKeepTheConnection);
    works.put("large objects", PgjdbcUsual::largeObjects);
    works.put("metadata", PgjdbcUsual::metadata);
    works.put("session settings", PgjdbcUsual::sessionSettings);
    int number = 0;
    boolean failed = false;
    for (Map.Entry<String, String> way : WAYS.entrySet()) {
      for (Map.Entry<String, Work> work : works.entrySet()) {
        failed |= !check(++number, way.getKey() + ": " + work.getKey(), () -> work.getValue().run(way.getValue()));
      }
    }
    failed |= !check(++number, "TLS where it is offered", () -> tls(""));
    System.out.println("1.." + number);
    System.exit(failed ? 1 : 0);
  }

  interface Check {
    void run() throws Exception;
  }

  static boolean check(int number, String name, Check check) {
    try {
      check.run();
    } catch (Throwable failure) {
      System.out.println("not ok " + number + " - " + name);
      failure.printStackTrace(System.out);
      return false;
    }
    System.out.println("ok " + number + " - " + name);
    return true;
  }
}

import com.google.gson.Gson;
import com.google.gson.JsonObject;
import io.grpc.CallOptions;
import io.grpc.Grpc;
import io.grpc.InsecureChannelCredentials;
import io.grpc.ManagedChannel;
import io.grpc.MethodDescriptor;
import io.grpc.StatusRuntimeException;
import io.grpc.stub.ClientCalls;
import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.TimeUnit;

/**
 * grpc-java as a client that finds its servers by xDS (xds:///NAME). Reads a command a line, writes an answer a line, both JSON. GRPC_XDS_BOOTSTRAP
 * says where the registry is.
 */
public final class XdsAgent {
    /** Messages as the bytes that they are. */
    private static final class Plain implements MethodDescriptor.Marshaller<byte[]> {
        @Override
        public InputStream stream(byte[] message) {
            return new ByteArrayInputStream(message);
        }

        @Override
        public byte[] parse(InputStream stream) {
            try {
                return stream.readAllBytes();
            } catch (IOException error) {
                throw new UncheckedIOException(error);
            }
        }
    }

    private static final MethodDescriptor<byte[], byte[]> WHO = MethodDescriptor.newBuilder(new Plain(), new Plain())
        .setType(MethodDescriptor.MethodType.UNARY).setFullMethodName("kingpost.test.Echo/Who").build();

    /** Who answered, and why calls failed. */
    private static Map<String, Object> call(ManagedChannel channel, int times) {
        Map<String, Integer> answered = new TreeMap<>();
        Map<String, Integer> failed = new TreeMap<>();
        for (int turn = 0; turn < times; turn++) {
            CallOptions options = CallOptions.DEFAULT.withDeadlineAfter(2, TimeUnit.SECONDS);
            try {
                byte[] answer = ClientCalls.blockingUnaryCall(channel, WHO, options, new byte[0]);
                answered.merge(new String(answer, StandardCharsets.UTF_8), 1, Integer::sum);
            } catch (StatusRuntimeException error) {
                failed.merge(error.getMessage(), 1, Integer::sum);
            }
        }
        return Map.of("answered", answered, "failed", failed);
    }

    public static void main(String[] arguments) throws Exception {
        Gson json = new Gson();
        Map<String, ManagedChannel> channels = new HashMap<>();
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            JsonObject asked = json.fromJson(line, JsonObject.class);
            ManagedChannel channel = channels.computeIfAbsent(asked.get("name").getAsString(),
                name -> Grpc.newChannelBuilder("xds:///" + name, InsecureChannelCredentials.create()).build());
            System.out.println(json.toJson(call(channel, asked.get("times").getAsInt())));
        }
        System.exit(0);
    }
}

package interop;

import com.baidu.brpc.protocol.BrpcMeta;
import com.baidu.brpc.server.RpcServer;
import com.baidu.brpc.server.RpcServerOptions;
import pipeline.general_model.GeneralModel.ModelOutput;
import pipeline.general_model.GeneralModel.Request;
import pipeline.general_model.GeneralModel.Response;
import pipeline.general_model.GeneralModel.Tensor;

/**
 * The general model service on brpc-java: what is fed comes back as outputs, unless the text of
 * the feed "command" asks for something else. Serves until its standard input ends.
 */
public final class Server {
    private static final String SERVICE =
            "baidu.paddle_serving.predictor.general_model.GeneralModelService";

    /** The method as brpc-java binds it. */
    public interface Model {
        @BrpcMeta(serviceName = SERVICE, methodName = "inference")
        Response inference(Request request);
    }

    /** Feeds back what it is fed. */
    public static final class Echo implements Model {
        @Override
        public Response inference(Request request) {
            String[] command = command(request).split(" ", 2);
            String argument = command.length > 1 ? command[1] : "";
            switch (command[0]) {
                case "sleep":
                    sleep(Long.parseLong(argument));
                    return echo(request);
                case "raise":
                    throw new IllegalStateException(argument);
                case "err_no":
                    return Response.newBuilder()
                            .setErrNo(Integer.parseInt(argument))
                            .setErrMsg("as told")
                            .build();
                case "exit":
                    Runtime.getRuntime().halt(0);
                    return null;
                default:
                    return echo(request);
            }
        }

        private static String command(Request request) {
            for (Tensor tensor : request.getTensorList()) {
                if (tensor.getAliasName().equals("command")) {
                    return tensor.getData(0);
                }
            }
            return "";
        }

        private static Response echo(Request request) {
            ModelOutput.Builder output = ModelOutput.newBuilder().setEngineName("echo");
            for (Tensor tensor : request.getTensorList()) {
                if (request.getFetchVarNamesList().contains(tensor.getAliasName())) {
                    output.addTensor(tensor);
                }
            }
            return Response.newBuilder().addOutputs(output).setLogId(request.getLogId()).build();
        }

        private static void sleep(long milliseconds) {
            try {
                Thread.sleep(milliseconds);
            } catch (InterruptedException error) {
                Thread.currentThread().interrupt();
            }
        }
    }

    private Server() {
    }

    public static void main(String[] arguments) throws Exception {
        RpcServerOptions options = new RpcServerOptions();
        options.setWorkThreadNum(32);
        options.setTcpNoDelay(true);
        RpcServer server = new RpcServer("127.0.0.1", Integer.parseInt(arguments[0]), options);
        server.registerService(new Echo());
        server.start();
        System.out.println("ready");
        while (System.in.read() >= 0) {
            continue;
        }
        Runtime.getRuntime().halt(0);
    }
}

import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse.BodyHandlers;
import java.util.regex.Pattern;

/** Enqueues jobs over HTTP with nothing but the JDK. It has no reader of JSON, so patterns stand for yours. */
public class Producer {
    public static void main(String[] args) throws Exception {
        var url = URI.create(System.getenv("FLEXIQ_SERVER") + "/flexiq.v1.ProducerService/Enqueue");
        var http = HttpClient.newHttpClient();
        for (int n = 0; n < (args.length > 0 ? Integer.parseInt(args[0]) : 1); n++) {
            var body = "{\"job\":{\"task\":\"mail\",\"args\":{\"to\":\"ada\",\"n\":" + n + "}}}";
            var request = HttpRequest.newBuilder(url)
                .header("Authorization", "Bearer " + System.getenv("FLEXIQ_TOKEN"))
                .header("Content-Type", "application/json")
                .POST(HttpRequest.BodyPublishers.ofString(body))
                .build();
            var answer = http.send(request, BodyHandlers.ofString());
            switch (answer.statusCode()) {
                case 200 -> System.out.println(find("\"status\":\"(\\w+)\"", answer.body()) + " " + find("\"id\":\"([^\"]+)\"", answer.body()));
                case 429 -> System.out.println(answer.headers().firstValue("Fq-Reason").orElseThrow() + " "
                    + find("\"metadata\":\\s*(\\{[^}]*\\})", answer.body()));
                default -> throw new IllegalStateException(answer.body());
            }
        }
    }

    static String find(String pattern, String text) {
        return Pattern.compile(pattern).matcher(text).results().findFirst().orElseThrow().group(1);
    }
}

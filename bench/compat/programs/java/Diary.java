import java.io.BufferedWriter;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.HashMap;
import java.util.Locale;
import java.util.Map;

/** Writes one line for each thing that happens, stamped with the machine's monotonic clock; lines survive a kill. */
final class Diary {
    private final BufferedWriter file;

    Diary(String path) throws IOException {
        file = Files.newBufferedWriter(Path.of(path), StandardOpenOption.CREATE, StandardOpenOption.APPEND);
    }

    synchronized void write(String words) {
        try {
            file.write(String.format(Locale.ROOT, "%.6f %s%n", System.nanoTime() / 1e9, words));
            file.flush();
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    /** The options of a program: --name value, again and again. */
    static Map<String, String> options(String[] arguments) {
        Map<String, String> options = new HashMap<>();
        for (int at = 0; at + 1 < arguments.length; at += 2) {
            options.put(arguments[at].substring(2), arguments[at + 1]);
        }
        return options;
    }
}

import java.util.stream.Collectors;
import org.apache.hadoop.thirdparty.protobuf.Descriptors.Descriptor;
import org.apache.hadoop.thirdparty.protobuf.Descriptors.EnumDescriptor;
import org.apache.hadoop.thirdparty.protobuf.Descriptors.FieldDescriptor;
import org.apache.hadoop.thirdparty.protobuf.Descriptors.FileDescriptor;

/** Prints the messages and enums of generated protobuf classes; see origin.md. */
public class Descriptors {
  static void print(Descriptor message) {
    System.out.println("message " + message.getFullName());
    message.getEnumTypes().forEach(Descriptors::print);
    for (FieldDescriptor field : message.getFields()) {
      String label = field.isRepeated() ? "repeated" : field.isRequired() ? "required" : "optional";
      String type = switch (field.getType()) {
        case MESSAGE -> field.getMessageType().getName();
        case ENUM -> field.getEnumType().getName();
        default -> field.getType().toString().toLowerCase();
      };
      String ending = field.hasDefaultValue() ? " = " + field.getDefaultValue() : "";
      System.out.println("  " + field.getNumber() + " " + label + " " + type + " " + field.getName() + ending);
    }
    message.getNestedTypes().forEach(Descriptors::print);
  }

  static void print(EnumDescriptor type) {
    System.out.println("enum " + type.getFullName() + ": " + type.getValues().stream()
        .map(value -> value.getName() + "=" + value.getNumber()).collect(Collectors.joining(" ")));
  }

  public static void main(String[] classes) throws ReflectiveOperationException {
    for (String name : classes) {
      FileDescriptor file = (FileDescriptor) Class.forName(name).getMethod("getDescriptor").invoke(null);
      System.out.println("# " + file.getName() + " " + file.getPackage());
      file.getEnumTypes().forEach(Descriptors::print);
      file.getMessageTypes().forEach(Descriptors::print);
    }
  }
}

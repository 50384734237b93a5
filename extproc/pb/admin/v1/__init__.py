"""Generated from proto/ by tools/gen_proto.py: change the .proto file and run it again."""

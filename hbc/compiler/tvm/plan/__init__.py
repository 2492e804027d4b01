"""Plans a method before any code is written: its stored values, their memory, its blocks of rows. Does not use TVM."""

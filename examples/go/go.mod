module sublet.example/hello

go 1.19

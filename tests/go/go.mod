module sublet.example/tests

go 1.19

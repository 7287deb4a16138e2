module sublet.example/functions

go 1.19
